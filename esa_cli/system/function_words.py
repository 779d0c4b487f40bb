"""The most frequent words of languages: a text's language is told by them, and they are left out of
its content words.

Languages have the names of their Snowball stemmers; those without one are here, so that their texts
are not stemmed as a neighbour's. The English list is the longest: what was measured used it.
"""

FUNCTION_WORDS = {
    "english": """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with what which who whom whose when where why how do does did has have
had he she his her him its i you your my me our we us were been being from about can could would
should may might must than so
""",
    "arabic": """
في من على إلى عن مع أن إن أو ثم هو هي هذا هذه ذلك تلك التي الذي كان كانت لا لم لن ما ماذا متى أين
كيف قد كل بين بعد قبل عند حتى كما هل لقد و يا أي وقد وكان
""",
    "armenian": """
և է են ու որ մի այս այդ չի էր էին իր նրա մեջ վրա հետ համար ինչ ով որտեղ երբ եւ
""",
    "basque": """
eta da ez bat du ere zen izan dira baina zer nor non noiz hori hau dute egin den dela
""",
    "bulgarian": """
и на да се не от е за в с по са ще че като но му той тя то са беше бил което който която какво кой
къде кога до го си при този тази със във
""",
    "catalan": """
el la els les un una i de del dels al als a en que no és amb per es va són com més o però se el
seu seva aquest aquesta què qui on quan hi ha l d s n m t era
""",
    "czech": """
a v se na je že o s z do i to k ve pro za by ale si po jako jsem byl byla bylo které který která
co kdo kde kdy od u jeho její jak tak nebo už před ze
""",
    "danish": """
og i at det er en et den til på de med af for ikke der var som han hun jeg vi sig har havde om fra
men hvad hvem hvor hvornår hans hendes blev ved så eller
""",
    "dutch": """
de het een en van in op te dat die is was met zijn voor niet aan er om ook als bij door naar maar
of uit nog wat wie waar wanneer hoe hij zij ze haar hem ik je wij we had heeft worden werd dan
""",
    "esperanto": """
la kaj de en estas estis al por ne ke li ŝi mi vi sed kun kiu kio kie kiam oni pri
""",
    "estonian": """
ja on ei see ta oli et kui ka aga mis kes kus millal oma ning või ma sa siis nii mida
""",
    "finnish": """
ja on ei oli se että hän en ole mutta kun kuin myös joka mitä mikä kuka missä milloin ovat olivat
hänen sen ne tai niin jo vain sitä
""",
    "french": """
le la les un une des du de et à en est que qui quoi dans pour pas par sur au aux ce cet cette ces
il elle ils elles on se sa son ses leur leurs avec ne plus ou où mais nous vous je était étaient
été avait a ont sont comme quand comment pourquoi quel quelle si y tout lui même l d qu c j n s m
t jusqu lorsqu puisqu
""",
    "german": """
der die das den dem des ein eine einen einem einer eines und in im zu zum zur von vom mit auf für
ist war waren wird wurde wurden sind nicht auch sich es er sie wir ich du ihr ihn ihm ihre sein
seine als an am aus bei nach wie was wer wen wem wo wann warum welche welcher welches dass daß
aber oder noch nur so um hat hatte haben über vor durch wenn man bis
""",
    "greek": """
και το η ο τα οι να του της των την τον στο στη στην στον με για από που δεν είναι ήταν ένα μια ως
θα τι ποιος πού πότε πως αλλά ή σε τους τις
""",
    "hindi": """
के का की में है हैं और से को पर यह वह ने था थी थे कि जो नहीं एक हो भी इस उस तो ही कौन क्या कब कहाँ
कैसे लिए कर गया गयी अपने
""",
    "hungarian": """
a az és hogy nem is egy volt van ez meg de csak mint már ha el ki mi hol mikor ki aki ami akkor
még vagy lesz őt
""",
    "icelandic": """
og að er í á það sem hann hún var ekki en til um við með fyrir af þeir hvað hver hvar
""",
    "indonesian": """
yang dan di dari ke untuk dengan pada adalah ini itu dalam tidak akan oleh sebagai juga karena ada
mereka dia ia apa siapa mana kapan bagaimana atau telah para kami
""",
    "irish": """
an na agus ar ag is tá bhí i sa go leis do ní a de mar sé sí cad cé cá nuair ach ina
""",
    "italian": """
il lo la i gli le un uno una di del dello della dei degli delle e è a al alla ai alle in nel nella
che chi non per con su sul sulla da dal dalla si era erano sono ha aveva come dove quando cosa
quale perché ma più anche se o questo questa suo sua l d c un dell all nell dall sull quest quell
""",
    "latin": """
et in est non ad ut cum qui quae quod ex sed si ab de sunt esse per enim hoc atque autem aut nec
ac quis quid ubi eius
""",
    "latvian": """
un ir uz ar no par ka tas kas bija kā arī bet vai nav viņš viņa pie līdz kad kur es
""",
    "lithuanian": """
ir yra kad į iš su kaip bet tai buvo o jis ji jo kas kur kada ne prie už apie nuo ar
""",
    "nepali": """
र को मा छ छन् लाई ले थियो थिए यो त्यो हुन् भने पनि एक गर्न के कसले कहाँ कहिले छैन गरेको
""",
    "norwegian": """
og i det er en et at til på de med av for ikke den som han hun jeg vi seg har hadde om fra men hva
hvem hvor når hans hennes ble var ved så eller etter
""",
    "persian": """
و در به از که این را با است آن برای بود شد شده می یک خود تا بر هم نیز او آنها چه کجا کی چگونه اما
یا های هر
""",
    "polish": """
i w na z się nie do to że jest o po jak za od co ale był była było przez dla oraz tak jego jej ich
kto gdzie kiedy który która które czy już tylko ze
""",
    "portuguese": """
o a os as um uma de do da dos das e em no na nos nas que não para por com se ao à é foi era são
ser como mais mas ou seu sua quem onde quando qual ele ela eles pelo pela também até isso este
esta
""",
    "romanian": """
și în de la cu pe nu că a o un este din care pentru mai al ale să fi sunt era ce cine unde când
lui dar sau ca prin au fost
""",
    "russian": """
и в во не что он на я с со как а то все она так его но да ты к у же вы за бы по только ее мне было
был была были из о об от до это этот эта кто где когда который которая которые чем для при или
""",
    "serbian": """
je i u se na da su od za sa što ne o kao ali bi koji koja koje bio bila ili po iz do ko gde kada
је и у се на да су од за са што не о као али би који која које био била или по из до ко где када
""",
    "slovak": """
a v sa na je že o s z do i to k vo pre za by ale si po ako som bol bola bolo ktoré ktorý ktorá čo
kto kde kedy od u jeho jej tak alebo už pred zo
""",
    "slovenian": """
je in v na se da so za z ki ne s pa po kot bi bil bila iz pri kaj kdo kje kdaj ali od
""",
    "spanish": """
el la los las un una unos unas de del y en que qué no se por para con a al es era fue son su sus
como más pero o lo le les si sí ya muy cuando cuándo donde dónde quién quien cuál está estaba
había ha este esta esto él ella ellos sin sobre entre también
""",
    "swahili": """
na ya wa kwa ni za la katika cha kuwa hii hiyo yake wake lakini kama nini nani wapi lini
""",
    "swedish": """
och i att det är en ett den till på de med av för inte som han hon jag vi sig har hade om från men
vad vem var när hur hans hennes blev vid så eller efter
""",
    "tagalog": """
ang ng sa mga na ay at si ni kay hindi ito siya niya para nang may ano sino saan kailan
""",
    "tamil": """
ஒரு இந்த அந்த என்று மற்றும் என அது இது அவர் அவள் அவன் உள்ள இல்லை யார் என்ன எங்கே எப்போது
""",
    "turkish": """
ve bir bu da de için ile o ne ki çok gibi daha ama olarak olan var değil kadar en sonra mi kim
nerede nasıl neden onun ben her ya
""",
    "ukrainian": """
і й в у не що на він я з як а то все вона так його але та до від за по це цей ця хто де коли який
яка які чи для при або був була було були їх її
""",
    "urdu": """
کے کی میں ہے ہیں اور سے کو پر یہ وہ نے تھا تھی تھے کہ جو نہیں ایک بھی اس کا کون کیا کب کہاں
""",
    "vietnamese": """
và là của có không được cho trong một người những với các này đã khi từ ai gì đâu
""",
    "yiddish": """
און איז די דער דאָס אַ אין פֿון צו מיט האָט נישט אויף װאָס ווער וואו ער זי עס ניט געווען
""",
}
"""Language -> its words, as they are written."""
