-- slots: every permit stands for one of the things that the clients list, which is its slot. No two
-- holders have the same.
--
-- A slot is known by its place in the list, from 0 on. The lists of all clients begin alike. A
-- request gets slots of its own list, because the lowest free slots are given, and its limit is
-- the length of its list. meta.slots has the longest list, 'slot,slot,...'.

slotted = {}
local taken   -- which slots are taken, by holders or by grants that are not written yet
local lowest  -- all slots below are taken
local told = {}  -- number and slots of each grant of this call to the caller's hub

function slotted.forget()
  taken = nil
end
-- Gives *grant* the lowest free slots, unless it has some.
function slotted.give(grant)
  if not taken then
    taken, lowest = {}, 0
    local all = call('HGETALL', facts)
    for i = 2, #all, 2 do
      for slot in string.gmatch(string.match(all[i], '^%d+:%d+:([^:]*)'), '%d+') do
        taken[tonumber(slot)] = true
      end
    end
  end
  if not grant.slots then
    local found = {}
    while #found < grant.permits do
      if not taken[lowest] then
        taken[lowest] = true
        found[#found + 1] = lowest
      end
      lowest = lowest + 1
    end
    grant.slots = table.concat(found, '+')
  end
  if grant.told or string.sub(grant.id, 1, #hub) ~= hub then return end
  grant.told = true
  append(told, { tonumber(string.match(grant.id, '%d+$')), grant.slots })
end
-- *grants* of the caller's hub, with the slots of all that this call granted to it.
function slotted.tell(grants)
  return { grants, told }
end

-- Compares the list that the caller declares, 'length:slot,slot,...', with that of the other
-- clients: while the semaphore is in use, one has to begin with the other, and it has to have the
-- slots of *grant*, if that is given. Returns the length and the longer list; or else nil, and the
-- error SLOTS with the list in use.
function slotted.compare(declared, grant)
  local length, own = string.match(declared, '^(%d+):(.*)$')
  local theirs = call('HGET', meta, 'slots')
  local in_use = state.waiting > 0 or call('ZCOUNT', holders, '(' .. exact(now), '+inf') > 0
  if not theirs or not in_use then return length, own end
  local shorter, longer = own .. ',', theirs .. ','
  if #shorter > #longer then shorter, longer = longer, shorter end
  local agree = string.sub(longer, 1, #shorter) == shorter
  for slot in string.gmatch(grant and grant.slots or '', '%d+') do
    agree = agree and tonumber(slot) < tonumber(length)
  end
  if not agree then return nil, redis.error_reply('SLOTS ' .. theirs) end
  return length, #theirs > #own and theirs or own
end
